"""`python -m ematrace`, which is also how torchrun starts it."""

from ematrace.cli import main

if __name__ == "__main__":
    main()
