"""The crash matrix: every durable step and every call, cut at every point, beside every partner."""
