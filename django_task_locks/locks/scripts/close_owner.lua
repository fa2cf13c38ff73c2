-- close_owner: declares a process dead; from here on every script refuses it. Repeatable.
--
-- KEYS[1]   anchor
-- ARGV[1]   owner
-- ARGV[2]   how long this is remembered, in ms
--
-- returns {"declared", id, ...}: its registry | {"foreign", key}

--@include _base

local owner, kept = ARGV[1], tonumber(ARGV[2])
local bad = foreign(CLOSED, 'zset') or foreign(OWNER .. owner, 'set')
if bad then return { 'foreign', bad } end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', CLOSED, '-inf', string.format('%.0f', now - kept))
redis.call('ZADD', CLOSED, 'NX', string.format('%.0f', now), owner)
return reply('declared', redis.call('SMEMBERS', OWNER .. owner))
