"""What moeplan writes: its own trace format, and layouts in the formats of engines."""
