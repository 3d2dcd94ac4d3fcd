-- The fleet's time.
-- keys: clock_key
-- include: clock/fleet_time

return string.format('%.0f', (fleet_time(clock_key)))
