"""How training scales: measured at several numbers of workers, predicted for more, and explained."""
