"""What does a context mechanism keep of the past, structure or content, and what does it cost?"""

__version__ = "0.1.0"
