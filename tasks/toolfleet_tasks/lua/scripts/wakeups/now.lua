-- `now`: the fleet's time in ms.
-- include: clock/fleet_time

local now = math.floor(fleet_time(clock_key) / 1000)
