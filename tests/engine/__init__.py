"""Tests on a real SGLang on the CPU. They skip unless MOEPLAN_SGLANG_VENV names what ``kit/setup.sh`` made."""
