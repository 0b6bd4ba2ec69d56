"""The OR-Tools models: linear master over columns, choice of columns, exact models of small layers."""
