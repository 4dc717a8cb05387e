"""What cells say together: quantities that no single cell holds, computed from recorded cells alone."""
