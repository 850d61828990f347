"""What released codes do and papers do not say, as subclasses of the published methods."""
