-- forget_entry: drops an id from an owner's registry where the request is no longer that owner's.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   id
-- ARGV[2]   owner
--
-- returns {"forgotten"} | {"refused", owner, token}: it is still this owner's | {"foreign", key}

--@include _base

local id, owner = ARGV[1], ARGV[2]
local request, bad = read(id)
bad = bad or foreign(OWNER .. owner, 'set')
if bad then return { 'foreign', bad } end
if request and request.owner == owner then return { 'refused', owner, request.token or '' } end
redis.call('SREM', OWNER .. owner, id)
return { 'forgotten' }
