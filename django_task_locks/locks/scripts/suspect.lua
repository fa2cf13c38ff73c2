-- suspect: an owner was seen without a row; tells for how long that has been so.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
--
-- returns {"suspect", ms since first seen, its ttl in seconds or ""} | {"foreign", key}

--@include _base

local KEPT = 30 * 24 * 3600 * 1000 -- of those that came to an end in another way
local owner = ARGV[1]
local bad = foreign(SUSPECTS, 'zset') or foreign(OWNERS, 'hash')
if bad then return { 'foreign', bad } end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', SUSPECTS, '-inf', as_text(now - KEPT))
redis.call('ZADD', SUSPECTS, 'NX', as_text(now), owner)
return {
  'suspect',
  as_text(now - redis.call('ZSCORE', SUSPECTS, owner)),
  redis.call('HGET', OWNERS, owner) or '', -- negative once the owner is closed
}
