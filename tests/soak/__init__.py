"""An hour of calls at a steady rate, and what every process of the fleet holds afterwards."""
