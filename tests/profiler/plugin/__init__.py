"""The engine-side plugin without an engine: everything that can be wrong without SGLang being there."""
