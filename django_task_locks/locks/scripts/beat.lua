-- beat: a process is alive. Keeps its TTL for those who judge it when its row is gone, and lights
-- the lanes that have something ready, since a marker may be lost with the process that took it.
-- Requests that are due enter the queues, where every executor is busy, too.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   its ttl in seconds
--
-- returns {"alive"} | {"closed", owner} | {"foreign", key}

--@include _base
--@include _grant
--@include _due

local owner, ttl = ARGV[1], ARGV[2]
local refused = refusal(owner, '')
if refused then return refused end
local bad = foreign(OWNERS, 'hash') or foreign(LANES, 'hash') or foreign(SUSPECTS, 'zset')
if bad then return { 'foreign', bad } end
redis.call('HSET', OWNERS, owner, ttl)
redis.call('ZREM', SUSPECTS, owner)
if not foreign_counter(SEQ) then promote_due() end
light_ready_lanes()
return { 'alive' }
