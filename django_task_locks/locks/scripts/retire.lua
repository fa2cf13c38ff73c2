-- retire: raises the generation of an executor slot, so that what its dead or ended executor still
-- sends is refused, and tells what that executor holds or waits for.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2]   slot: number.generation of the executor that has ended
--
-- returns {"retired", id, ...}: the requests that carry this generation or an older one, and tasks
--         that a rebuild has restored from their rows and that no executor of the owner has confirmed
--         | {"foreign", key}

--@include _base

local owner, slot = ARGV[1], ARGV[2]
local number, generation = slot:match('^(%d+)%.(%d+)$')
local bad = foreign(SLOT .. owner, 'hash') or foreign(OWNER .. owner, 'set')
if bad then return { 'foreign', bad } end
local field = GENERATION .. number
local present = tonumber(redis.call('HGET', SLOT .. owner, field) or '0')
if present <= tonumber(generation) then
  redis.call('HSET', SLOT .. owner, field, as_text(generation + 1))
end
local ids = {}
for _, id in ipairs(redis.call('SMEMBERS', OWNER .. owner)) do
  local request = read(id)
  if request and request.state == 'held' and request.lane and not request.slot then
    ids[#ids + 1] = id
  elseif request and request.slot then
    local its_number, its_generation = request.slot:match('^(%d+)%.(%d+)$')
    if its_number == number and tonumber(its_generation) <= tonumber(generation) then
      ids[#ids + 1] = id
    end
  end
end
return reply('retired', ids)
