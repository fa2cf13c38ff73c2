-- request: grants all resources of a request or none.
--
-- KEYS[1]    anchor
-- KEYS[2]    absent
-- ARGV[1]    id
-- ARGV[2]    mode: "wait" queues a blocked request, "try" leaves nothing of it
-- ARGV[3]    owner: of a hold, the process that holds it from the grant on; of a task, queue/<queue>
-- ARGV[4]    slot: number.generation of the executor that asks for the hold, or ""
-- ARGV[5]    lane, "" for a hold
-- ARGV[6]    of a hold the owner's ttl in seconds; of a task its lane's description, JSON with queue
--            and versions
-- ARGV[7]    priority, -100 to 100
-- ARGV[8]    label for operators
-- ARGV[9]    number of exclusive resources
-- ARGV[10..] the exclusive resources, then the shared ones
--
-- returns {"held", token} | {"granted", ""} | {"waiting", ""}
--         | {"blocked", resource, mode, id, state, owner, since, label, ...}: seven for each obstacle
--         | {"refused", owner, token}: a hold with the id of another owner's request
--         | {"foreign", key} | {"closed", owner} | {"stale_slot", slot}
-- A known id is answered with its present state, so that a repeated call changes nothing.

local id, mode, owner, slot, lane, ttl_or_lane = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local priority, label, exclusive_count = ARGV[7], ARGV[8], tonumber(ARGV[9])
local is_hold = lane == ''
local exclusive, shared = {}, {}
for index = 1, exclusive_count do exclusive[index] = ARGV[index + 9] end
for index = 10 + exclusive_count, #ARGV do shared[#shared + 1] = ARGV[index] end

local request = { id = id, owner = owner, exclusive = exclusive, shared = shared }
if slot ~= '' then request.slot = slot end
if label ~= '' then request.label = label end
if not is_hold then
  request.lane = lane
  request.queue = owner:sub(#QUEUE + 1)
end

local function arrive(request, priority, number)
  request.rank = (100 - priority) * 8796093022208 + number -- 2^43
  request.score = string.format('%.0f', request.rank)
end

--@include _record
--@include _grant_free
--@include _base
--@include _grant

local refused = refusal(is_hold and owner or '', slot)
if refused then return refused end
local known, bad = read(id)
if bad then return { 'foreign', bad } end
if known and is_hold and known.owner ~= owner then
  return { 'refused', known.owner, known.token or '' }
end
if known and known.state ~= 'waiting' then return { known.state, known.token or '' } end

bad = foreign(OWNER .. owner, 'set') or foreign(LANES, 'hash') or foreign_counter(SEQ)
  or is_hold and foreign(OWNERS, 'hash')
  or not is_hold and (foreign(READY .. lane, 'zset') or foreign(WAKE .. lane, 'zset'))
if bad then return { 'foreign', bad } end
if known then
  -- whoever asks again for what waits has it looked at again, though nothing should have been missed:
  -- an operator may have deleted a lock
  each_resource(known, mark_awaited)
  if is_grantable(known) then
    dequeue(known)
    grant(known)
  end
  return { known.state, known.token or '' }
end

local function is_free()
  local keys, locks = {}, {}
  for index, resource in ipairs(exclusive) do keys[index] = LOCK .. resource end
  for _, resource in ipairs(shared) do
    keys[#keys + 1] = WAIT_X .. resource
    locks[#locks + 1] = LOCK .. resource
  end
  local taken = 0
  chunked(keys, function(...) taken = taken + redis.call('EXISTS', ...) end)
  -- SDIFF looks at the type of each key, whatever the others hold: an error is an exclusive holder
  chunked(locks, function(...)
    if redis.pcall('SDIFF', REQUEST .. id, ...).err then taken = taken + 1 end
  end)
  return taken == 0
end

if not request.rank then arrive(request, priority, next_number()) end
request.token = nil

-- Whether an unclaimed grant scores later than this request: only then anything can be revoked.
local function has_later_grants()
  for _, other in ipairs(redis.call('HKEYS', LANES)) do
    local last = redis.pcall('ZREVRANGE', READY .. other, 0, 0, 'WITHSCORES')
    if not last.err and last[2] and tonumber(last[2]) > request.rank then return true end
  end
  return false
end

local obstacles, revocable = {}, {}
if not is_free() then
  bad = foreign_queue(request)
  local function check_lock(resource)
    local type = redis.call('TYPE', LOCK .. resource).ok
    if type ~= 'none' and type ~= 'string' and type ~= 'set' then bad = LOCK .. resource end
  end
  for _, resource in ipairs(exclusive) do check_lock(resource) end
  for _, resource in ipairs(shared) do
    check_lock(resource)
    bad = bad or foreign(WAIT_X .. resource, 'zset')
  end
  if bad then return { 'foreign', bad } end
  obstacles, revocable = survey(request, has_later_grants(), 10)
end

if #obstacles > 0 and mode == 'try' then
  local values = {}
  append_obstacles(values, obstacles, 10)
  return reply('blocked', values)
end

for _, other in ipairs(revocable) do revoke(other) end

redis.call('DEL', GRANT .. id) -- of a request of this id whose record was deleted
redis.call('SADD', OWNER .. owner, id)
if is_hold then
  redis.call('HSET', OWNERS, owner, ttl_or_lane)
elseif redis.call('HSETNX', LANES, lane, ttl_or_lane) == 1 then
  redis.call('HINCRBY', LANES, '', 1)
  light('')
end
if #obstacles == 0 then
  grant(request)
  return { request.state, request.token or '' }
end
enqueue(request)
set_state(request, 'waiting')
return { 'waiting', '' }
