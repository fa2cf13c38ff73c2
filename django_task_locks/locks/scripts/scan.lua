-- scan: looks at a part of all requests, or of all locks, for what nothing else leads to; read-only.
-- It looks at every key of the server, whoever's it is, and so is to be called with pauses.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   "requests" or "locks"
-- ARGV[2]   where to go on: "0" at first, then what the last call returned
-- ARGV[3]   how many keys to look at in this call, about
--
-- returns {"scanned", where to go on ("0" at the end), ...}, and for each request that is not in its
--         owner's registry id, owner, state; for each holder of and waiter for a resource that has no
--         request resource, "holder" | "waiter", id

--@include _base

local family = ARGV[1] == 'requests' and REQUEST or LOCK
local page = redis.call('SCAN', ARGV[2], 'MATCH', family .. '*', 'COUNT', ARGV[3])
local found = { page[1] }
local function report(...)
  for _, value in ipairs({ ... }) do found[#found + 1] = value end
end
local function look_at_request(id)
  local request = read(id)
  if request and redis.pcall('SISMEMBER', OWNER .. request.owner, id) == 0 then
    report(id, request.owner, request.state)
  end
end
local function look_for_request(resource, kind, id)
  if redis.call('EXISTS', REQUEST .. id) == 0 then report(resource, kind, id) end
end
local function look_at_lock(resource)
  local _, holders = holders_of(resource)
  for _, id in ipairs(holders) do look_for_request(resource, 'holder', id) end
  -- Whoever is first keeps all others waiting.
  if not foreign(WAIT .. resource, 'zset') then
    for _, id in ipairs(redis.call('ZRANGE', WAIT .. resource, 0, 0)) do
      look_for_request(resource, 'waiter', id)
    end
  end
end
for _, key in ipairs(page[2]) do
  local name = key:sub(#family + 1)
  if family == REQUEST then look_at_request(name) else look_at_lock(name) end
end
return reply('scanned', found)
