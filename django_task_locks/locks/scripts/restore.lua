-- restore: brings a request into the state that its task's row, or the process that it belongs to,
-- says it has. What is there already stays as it is.
--
-- During a rebuild nothing else counts but what has been restored. In an open epoch a process restores
-- what it holds and what was lost alone, and whatever else is held counts.
--
-- KEYS[1]    anchor
-- KEYS[2]    absent
-- ARGV[1]    id
-- ARGV[2]    "held" or "waiting"
-- ARGV[3]    owner: the process that holds it, or waits for it; of a waiting task queue/<queue>
-- ARGV[4]    slot: number.generation of the executor that has it, or ""
-- ARGV[5]    lane, "" for a hold
-- ARGV[6]    description of the lane, "" for a hold
-- ARGV[7]    ttl of the process in seconds, "" for a waiting task
-- ARGV[8]    token, "" of what waits
-- ARGV[9]    arrival: its place in the order within its priority
-- ARGV[10]   priority, -100 to 100
-- ARGV[11]   label for operators
-- ARGV[12]   of a waiting task the time before which it takes no place in any queue, in ms, or ""
-- ARGV[13]   in an open epoch the time in ms after which it changes nothing, "" during a rebuild
-- ARGV[14]   number of exclusive resources
-- ARGV[15..] the exclusive resources, then the shared ones
--
-- No number that is given out afterwards is smaller than a token that is restored.
--
-- returns {"restored"} | {"kept"} | {"conflict", id, owner}: another one excludes it, and nothing was
--         changed | {"foreign", key}; in an open epoch also, without a change, {"ended"}: it is
--         somebody else's, or its slot has gone on | {"late"} | {"closed", owner} | {"stale_slot", slot}

--@include _base
--@include _grant
--@include _postpone
--@include _drop

local id, state, owner, slot, lane = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local description, ttl, token, due = ARGV[6], ARGV[7], ARGV[8], ARGV[12]
local last_ms, exclusive_count = tonumber(ARGV[13]), tonumber(ARGV[14])
local is_rebuild = not last_ms
local request = { id = id, owner = owner, exclusive = {}, shared = {} }
for index = 1, exclusive_count do request.exclusive[index] = ARGV[index + 14] end
for index = 15 + exclusive_count, #ARGV do request.shared[#request.shared + 1] = ARGV[index] end
request.rank = rank_of(ARGV[10], ARGV[9])
request.score = as_text(request.rank)
if slot ~= '' then request.slot = slot end
if lane ~= '' then
  request.lane = lane
  request.queue = cjson.decode(description).queue
end
if ARGV[11] ~= '' then request.label = ARGV[11] end
if token ~= '' then request.token = token end

if not is_rebuild then
  local refused = refusal(owner, slot)
  if refused then return refused end
  if now_ms() > last_ms then return { 'late' } end
end

local function foreign_lock(resource)
  local type = redis.call('TYPE', LOCK .. resource).ok
  if type ~= 'none' and type ~= 'string' and type ~= 'set' then return LOCK .. resource end
end

local known, bad = read(id)
bad = bad or foreign(CONFIRMED, 'set') or foreign(OWNER .. owner, 'set') or foreign(LANES, 'hash')
  or foreign(OWNERS, 'hash') or foreign(SLOT .. owner, 'hash') or foreign(DUE, 'zset')
  or foreign_for_hand_over() or lane ~= '' and foreign(READY .. lane, 'zset')
  or foreign_queue(request)
each_resource(request, function(resource)
  bad = bad or foreign_lock(resource) or foreign(WAIT_X .. resource, 'zset')
end)
if bad then return { 'foreign', bad } end

-- Who has what this request is to hold: {id, its request or nil, resource}.
local function others()
  local found = {}
  local function add(resource, harmless)
    local mode, ids = holders_of(resource)
    if mode == harmless then return end
    for _, other in ipairs(ids) do
      if other ~= id then found[#found + 1] = { other, read(other), resource } end
    end
  end
  for _, resource in ipairs(request.exclusive) do add(resource) end
  for _, resource in ipairs(request.shared) do add(resource, 'shared') end
  return found
end

local function begin()
  if next_number() < (tonumber(token) or 0) then redis.call('SET', SEQ, token) end
end

local function confirm()
  if is_rebuild then redis.call('SADD', CONFIRMED, id) end
  redis.call('SADD', OWNER .. owner, id)
  if ttl ~= '' and redis.call('HEXISTS', OWNERS, owner) == 0 then
    redis.call('HSET', OWNERS, owner, ttl)
  end
  if lane ~= '' and redis.call('HSETNX', LANES, lane, description) == 1 then
    redis.call('HINCRBY', LANES, '', 1)
  end
  -- the slot's own is the task: what its code holds besides carries the slot, too
  if slot ~= '' and lane ~= '' then redis.call('HSET', SLOT .. owner, slot:match('^%d+'), id) end
end

-- An executor claims the next only when the last has ended.
local function has_slot_gone_on()
  if slot == '' or lane == '' then return false end
  local present = redis.call('HGET', SLOT .. owner, slot:match('^%d+'))
  return present and present ~= id
end

-- Whether the holder of a lock keeps it. Without a request it may be a process that has not restored it
-- yet.
local function is_rival(other)
  if is_rebuild then
    return other and other.state == 'held' and redis.call('SISMEMBER', CONFIRMED, other.id) == 1
  end
  return not other or other.state ~= 'granted' or foreign(READY .. other.lane, 'zset')
    or foreign_queue(other)
end

local function correct_slot()
  if slot ~= '' and known.slot ~= slot then
    known.slot = slot
    redis.call('SET', REQUEST .. id, record_of(known))
  end
end

local is_same = known and known.owner == owner and (token == '' or known.token == token)
local is_there = state == 'held' and is_same and known.state == 'held'
if is_there and is_rebuild then
  begin()
  correct_slot()
  confirm()
  return { 'kept' }
end
-- a hold that waits, as far as its process knows, may have been granted
if state == 'waiting' and is_same and (known.state ~= 'held' or lane == '') then
  begin()
  confirm()
  return { 'kept' }
end
if not is_rebuild and (known and not is_there or has_slot_gone_on()) then return { 'ended' } end

local in_the_way = state == 'held' and others() or {}
for _, other in ipairs(in_the_way) do
  if is_rival(other[2]) then
    return { 'conflict', other[1], other[2] and other[2].owner or '' }
  end
end

begin()
if known and not is_there then
  if state == 'waiting' then request.score, request.rank = known.score, known.rank end
  drop(known)
end
for _, other in ipairs(in_the_way) do
  local present = read(other[1])
  if not present then
    redis.pcall('SREM', LOCK .. other[3], other[1])
    if redis.pcall('GET', LOCK .. other[3]) then redis.call('DEL', LOCK .. other[3]) end
  elseif present.state == 'granted' then
    revoke(present)
  elseif present.state == 'held' then
    drop(present)
  end
end
confirm()
if is_there then
  correct_slot()
  take(known)
elseif state == 'held' then
  take(request)
  set_state(request, 'held')
elseif is_early(due) then
  postpone(request, due)
else
  enqueue(request)
  set_state(request, 'waiting')
  each_resource(request, function(resource) note_unsettled(resource, '-inf') end)
end
return { 'restored' }
