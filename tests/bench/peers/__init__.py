"""Other tools, run beside moeplan in the same benchmark."""
