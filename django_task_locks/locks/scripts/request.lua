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
-- ARGV[9]    of a task the time before which it takes no place in any queue, as Unix time in ms, or ""
-- ARGV[10]   number of exclusive resources
-- ARGV[11..] the exclusive resources, then the shared ones
--
-- returns {"held", token} | {"granted", ""} | {"waiting", ""} | {"due", ""}
--         | {"blocked", resource, mode, id, state, owner, since, label, ...}: seven for each obstacle
--         | {"refused", owner, token}: a hold with the id of another owner's request
--         | {"foreign", key} | {"closed", owner} | {"stale_slot", slot}
-- A known id is answered with its present state, so that a repeated call changes nothing.

local id, mode, owner, slot, lane, ttl_or_lane = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local priority, label, due, exclusive_count = ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local is_hold = lane == ''
local queue = not is_hold and owner:sub(#QUEUE + 1) or nil
local number -- of its arrival

--@include _grant_free
--@include _record

local exclusive, shared = {}, {}
for index = 1, exclusive_count do exclusive[index] = ARGV[index + 10] end
for index = 11 + exclusive_count, #ARGV do shared[#shared + 1] = ARGV[index] end
local request = { id = id, owner = owner, exclusive = exclusive, shared = shared, queue = queue }
if slot ~= '' then request.slot = slot end
if label ~= '' then request.label = label end
if not is_hold then request.lane = lane end

local function arrive(number)
  request.rank = rank_of(priority, number)
  request.score = as_text(request.rank)
end

--@include _base
--@include _grant
--@include _admit
--@include _postpone

local refused = refusal(is_hold and owner or '', slot)
if refused then return refused end
local known, bad = read(id)
if bad then return { 'foreign', bad } end
if known and is_hold and known.owner ~= owner then
  return { 'refused', known.owner, known.token or '' }
end
if known and known.state ~= 'waiting' then return { known.state, known.token or '' } end

local must_wait = is_early(due)
bad = foreign(OWNER .. owner, 'set') or foreign(LANES, 'hash') or foreign_counter(SEQ)
  or is_hold and foreign(OWNERS, 'hash')
  or not is_hold and (foreign(READY .. lane, 'zset') or foreign(WAKE .. lane, 'zset'))
  or must_wait and foreign(DUE, 'zset')
if bad then return { 'foreign', bad } end
if known then
  -- whoever asks again for what waits has it looked at again, though nothing should have been missed:
  -- an operator may have deleted a lock
  each_resource(known, mark_awaited)
  if not is_closed(known) and is_grantable(known) then
    dequeue(known)
    grant(known)
  end
  return { known.state, known.token or '' }
end

local function register()
  redis.call('DEL', GRANT .. id) -- of a request of this id whose record was deleted
  redis.call('SADD', OWNER .. owner, id)
  if is_hold then
    redis.call('HSET', OWNERS, owner, ttl_or_lane)
  elseif redis.call('HSETNX', LANES, lane, ttl_or_lane) == 1 then
    redis.call('HINCRBY', LANES, '', 1)
    light('')
  end
end

if must_wait then
  arrive(0)
  register()
  postpone(request, due)
  return { 'due', '' }
end

arrive(number or next_number())
local obstacles, revocable, in_the_way = look_around(request)
if in_the_way then return { 'foreign', in_the_way } end
if #obstacles > 0 and mode == 'try' then
  local values = {}
  append_obstacles(values, obstacles, 10)
  return reply('blocked', values)
end
register()
admit(request, obstacles, revocable)
return { request.state, request.token or '' }
