-- release_owner: ends requests of one owner by its registry, a batch a call.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   most requests to end in this call
--
-- returns {"released", number ended, number left, is there more to settle} | {"foreign", key}

--@include _base
--@include _grant

local owner, most = ARGV[1], tonumber(ARGV[2])
local registry = OWNER .. owner
local bad = foreign(registry, 'set') or foreign_for_hand_over()
if bad then return { 'foreign', bad } end
local ids = redis.call('SRANDMEMBER', registry, most)
local ended = 0
for _, id in ipairs(ids) do
  local request = read(id)
  if request and request.owner == owner then finish(request) end
  redis.call('SREM', registry, id)
  ended = ended + 1
end
return { 'released', ended, redis.call('SCARD', registry), is_unsettled() }
