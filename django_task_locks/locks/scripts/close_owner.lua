-- close_owner: declares a process dead; from here on every script refuses it. Repeatable.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   how long this is remembered, in ms
--
-- returns {"declared", id, ...}: its registry | {"foreign", key}

--@include _base

local owner, kept = ARGV[1], tonumber(ARGV[2])
local bad = foreign(CLOSED, 'zset') or foreign(OWNERS, 'hash') or foreign(OWNER .. owner, 'set')
if bad then return { 'foreign', bad } end
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', CLOSED, '-inf', as_text(now - kept))
redis.call('ZADD', CLOSED, 'NX', as_text(now), owner)
-- a request compares its TTL with this one: see request
local ttl = redis.call('HGET', OWNERS, owner)
if ttl and ttl:sub(1, 1) ~= '-' then redis.call('HSET', OWNERS, owner, '-' .. ttl) end
return reply('declared', redis.call('SMEMBERS', OWNER .. owner))
