-- beat: a process is alive. Keeps its TTL for those who judge it when its row is gone, and lights
-- the lanes that have something ready, since a marker may be lost with the process that took it.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   its ttl in seconds
--
-- returns {"alive"} | {"closed", owner} | {"foreign", key}

--@include _base
--@include _wake

local owner, ttl = ARGV[1], ARGV[2]
local refused = refusal(owner, '')
if refused then return refused end
local bad = foreign(OWNERS, 'hash') or foreign(LANES, 'hash') or foreign(SUSPECTS, 'zset')
if bad then return { 'foreign', bad } end
redis.call('HSET', OWNERS, owner, ttl)
redis.call('ZREM', SUSPECTS, owner)
light_ready_lanes()
return { 'alive' }
