-- forget_owner: removes the bookkeeping of a process that holds nothing any more. Messages that it
-- did not read go with it, and what is ready is offered again.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
--
-- returns {"forgotten"} | {"holding", number of its requests} | {"foreign", key}

--@include _base
--@include _wake

local owner = ARGV[1]
local bad = foreign(OWNER .. owner, 'set') or foreign(OWNERS, 'hash') or foreign(LANES, 'hash')
  or foreign(SUSPECTS, 'zset')
if bad then return { 'foreign', bad } end
local left = redis.call('SCARD', OWNER .. owner)
if left > 0 then return { 'holding', left } end
redis.call('HDEL', OWNERS, owner)
redis.call('ZREM', SUSPECTS, owner)
redis.call('DEL', SLOT .. owner, CONTROL .. owner)
light_ready_lanes()
return { 'forgotten' }
