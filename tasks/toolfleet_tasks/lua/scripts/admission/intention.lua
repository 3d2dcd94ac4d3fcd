-- `digest`: with an idempotency key, of what the call would do; and `asked_at`, the fleet's time (s) behind it.

local digest, asked_at
if intention ~= '' then digest, asked_at = string.match(intention, '^(%S+) ?(%d*)') end
