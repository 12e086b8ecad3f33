"""Model files: reading their headers, fetching the embedded one, keeping converted ones."""
