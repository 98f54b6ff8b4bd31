"""A sizing report: one frozen value with every number and sentence, and its four writers (HTML, PDF, XLSX, JSON)."""
