from ematrace.spen import SpenConfig, SpenForCausalLM, SpenModel
