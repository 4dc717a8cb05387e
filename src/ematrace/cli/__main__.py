"""`python -m ematrace.cli`."""

from ematrace.cli import main

if __name__ == "__main__":
    main()
