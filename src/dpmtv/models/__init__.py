"""The only room with torch and transformers."""
