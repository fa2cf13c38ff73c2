-- sweep: during a rebuild, ends requests that neither a row nor a process has confirmed.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner in whose registry they are
-- ARGV[2..] their ids
--
-- returns {"swept", number ended} | {"foreign", key}

--@include _base
--@include _grant
--@include _drop

local owner = ARGV[1]
local bad = foreign(CONFIRMED, 'set') or foreign(OWNER .. owner, 'set') or foreign_for_hand_over()
if bad then return { 'foreign', bad } end
local ended = 0
for _, id in ipairs({ unpack(ARGV, 2) }) do
  if redis.call('SISMEMBER', CONFIRMED, id) == 0 then
    local request = read(id)
    if request and request.owner == owner then drop(request) end
    redis.call('SREM', OWNER .. owner, id)
    ended = ended + 1
  end
end
return { 'swept', ended }
