"""Where effects meet decisions; transactions begin and end here."""
