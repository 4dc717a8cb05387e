"""What cells say together: quantities that no single cell holds, computed from recorded cells alone.

`gap_design` says which arms the gap's cells are of, with the fields of each arm's model config.
"""
