-- Taking, giving back and handing over locks.

--@include _wake

local function set_state(request, state)
  request.state = state
  request.since = now_ms()
  redis.call('SET', REQUEST .. request.id, record_of(request))
end

-- Where somebody waits for a resource, its lock tells: it is a set, or its value begins with
-- AWAITED, or is AWAITED alone where nobody holds it. So a lock that is not there, or has an
-- UNAWAITED or SOLE holder, needs no look at the queue. (It may tell so when the waiters have left.)

local function is_awaited(resource) return redis.call('EXISTS', WAIT .. resource) == 1 end

-- The only shared holder of a resource becomes one of perhaps several.
local function make_set(resource, holder)
  redis.call('DEL', LOCK .. resource)
  redis.call('SADD', LOCK .. resource, holder)
end

local function mark_awaited(resource)
  local value = redis.pcall('GET', LOCK .. resource)
  if not value then
    redis.call('SET', LOCK .. resource, AWAITED)
  elseif sole_in(value) then
    make_set(resource, sole_in(value))
  elseif type(value) == 'string' and value:sub(1, 1) == UNAWAITED then
    redis.call('SET', LOCK .. resource, AWAITED .. value:sub(2))
  end
end

local function drop_mark(resource)
  if redis.pcall('GET', LOCK .. resource) == AWAITED and not is_awaited(resource) then
    redis.call('DEL', LOCK .. resource)
  end
end

local function each_resource(request, apply)
  for _, resource in ipairs(request.exclusive) do apply(resource) end
  for _, resource in ipairs(request.shared) do apply(resource) end
end

local function take(request)
  local pairs_to_set = {}
  for _, resource in ipairs(request.exclusive) do
    local mark = is_awaited(resource) and AWAITED or UNAWAITED
    pairs_to_set[#pairs_to_set + 1] = LOCK .. resource
    pairs_to_set[#pairs_to_set + 1] = mark .. request.id
  end
  chunked(pairs_to_set, function(...) redis.call('MSET', ...) end)
  for _, resource in ipairs(request.shared) do
    local value = redis.pcall('GET', LOCK .. resource)
    if value == AWAITED then redis.call('DEL', LOCK .. resource) end
    if sole_in(value) then make_set(resource, sole_in(value)) end
    redis.call('SADD', LOCK .. resource, request.id)
  end
end

-- Frees only what is this request's: a foreign value, or a lock that an operator deleted and
-- somebody else took, is left alone. Returns the resources of which it left a mark.
local function give_back(request)
  local keys, free, marks, awaited = {}, {}, {}, {}
  for index, resource in ipairs(request.exclusive) do keys[index] = LOCK .. resource end
  for first = 1, #keys, CHUNK do
    local last = math.min(first + CHUNK - 1, #keys)
    for index, value in ipairs(redis.call('MGET', unpack(keys, first, last))) do
      local position = first + index - 1
      if value == UNAWAITED .. request.id then
        free[#free + 1] = keys[position]
      elseif value == AWAITED .. request.id then
        marks[#marks + 1] = keys[position]
        marks[#marks + 1] = AWAITED
        awaited[#awaited + 1] = request.exclusive[position]
      end
    end
  end
  chunked(free, function(...) redis.call('DEL', ...) end)
  chunked(marks, function(...) redis.call('MSET', ...) end)
  for _, resource in ipairs(request.shared) do
    if redis.pcall('GET', LOCK .. resource) == SOLE .. request.id then
      redis.call('DEL', LOCK .. resource)
    elseif redis.pcall('SREM', LOCK .. resource, request.id) == 1 and is_awaited(resource) then
      if redis.call('SET', LOCK .. resource, AWAITED, 'NX') then awaited[#awaited + 1] = resource end
    end
  end
  return awaited
end

local function enqueue(request)
  for _, resource in ipairs(request.exclusive) do
    redis.pcall('ZADD', WAIT_X .. resource, request.score, request.id)
  end
  each_resource(request, function(resource)
    redis.pcall('ZADD', WAIT .. resource, request.score, request.id)
    mark_awaited(resource)
  end)
end

local function dequeue(request)
  for _, resource in ipairs(request.exclusive) do
    redis.pcall('ZREM', WAIT_X .. resource, request.id)
  end
  each_resource(request, function(resource)
    redis.pcall('ZREM', WAIT .. resource, request.id)
  end)
end

-- All locks are free for this request: give them. A hold (an immediate task's too) is held from
-- here on; a task is granted until a worker claims it.
local function grant(request)
  take(request)
  if request.lane then
    set_state(request, 'granted')
    redis.call('ZADD', READY .. request.lane, request.score, request.id)
    light(request.lane)
  else
    request.token = as_text(next_number())
    set_state(request, 'held')
  end
end

-- An unclaimed grant goes back to its place in the queue; nothing behind it becomes grantable,
-- since it still stands before them.
local function revoke(request)
  give_back(request)
  redis.call('ZREM', READY .. request.lane, request.id)
  enqueue(request)
  set_state(request, 'waiting')
end

-- Whether it is a hold whose process was declared missing: it is released, not granted.
local function is_closed(request)
  return not request.lane and redis.pcall('ZSCORE', CLOSED, request.owner) and true
end

-- A waiting request conflicts with no holder and with no earlier waiter. Every holder counts:
-- a later unclaimed grant in its way was sent back when the waiter arrived. What grant() writes
-- besides the locks must be ours: it may not fail half-way.
local function is_grantable(request)
  if request.lane and foreign(READY .. request.lane, 'zset') then return false end
  for _, resource in ipairs(request.exclusive) do
    local value = redis.pcall('GET', LOCK .. resource)
    if value and value ~= AWAITED then return false end
    if first_waiting(WAIT .. resource) ~= request.id then return false end
  end
  for _, resource in ipairs(request.shared) do
    local mode = holders_of(resource, 0)
    if mode == 'exclusive' or mode == 'foreign' then return false end
    local _, rank = first_waiting(WAIT_X .. resource)
    if rank and rank < request.rank then return false end
  end
  return true
end

-- Resources whose waiters are not all examined yet, see `settle`.
local may_be_unsettled

local function note_unsettled(resource, cursor)
  may_be_unsettled = true
  redis.call('HSET', UNSETTLED, resource, cursor)
end

local function is_unsettled()
  return may_be_unsettled and redis.call('EXISTS', UNSETTLED) or 0
end

-- What everything that hands over writes, whoever is concerned. To be asked before.
local function foreign_for_hand_over()
  local type = redis.call('TYPE', UNSETTLED).ok
  may_be_unsettled = type ~= 'none'
  if may_be_unsettled and type ~= 'hash' then return UNSETTLED end
  return foreign_counter(SEQ)
end

-- Examines up to `most` waiters of a resource that an exclusive request has left: the first
-- exclusive one, or the run of shared ones before it, from `cursor` (a bound on the score) on. What
-- is left of the run is noted, with the cursor to go on from.
local function collect_after_exclusive(resource, cursor, most, candidate)
  local first = first_waiting(WAIT .. resource)
  if first then
    local id, rank = first_waiting(WAIT_X .. resource)
    if id == first then
      candidate(id, rank)
    else
      local bound = rank and '(' .. as_text(rank) or '+inf'
      local run = redis.pcall(
        'ZRANGEBYSCORE', WAIT .. resource, cursor, bound, 'WITHSCORES', 'LIMIT', 0, most)
      for index = 1, #run, 2 do candidate(run[index], tonumber(run[index + 1])) end
      if #run == 2 * most then
        note_unsettled(resource, '(' .. run[#run])
        return
      end
    end
  end
  if may_be_unsettled then redis.call('HDEL', UNSETTLED, resource) end
end

-- Where a shared request left, the run of shared waiters was grantable before: only the first
-- exclusive waiter is a candidate, and only with no shared one before it.
local function collect_after_shared(resource, candidate)
  local id, rank = first_waiting(WAIT .. resource)
  if id and id == first_waiting(WAIT_X .. resource) then candidate(id, rank) end
end

-- Grants those of the candidates that are grantable, in order, and returns their ids. Granting one
-- never makes another grantable, so one pass is enough.
local function grant_candidates(ranks)
  local order = {}
  for id in pairs(ranks) do order[#order + 1] = id end
  table.sort(order, function(a, b) return ranks[a] < ranks[b] end)
  local granted = {}
  for _, id in ipairs(order) do
    local request = read(id)
    if request and request.state == 'waiting' and not is_closed(request) and is_grantable(request) then
      dequeue(request)
      grant(request)
      if not request.lane then redis.pcall('RPUSH', GRANT .. id, request.token) end
      granted[#granted + 1] = id
    end
  end
  return granted
end

-- The candidates of one call by their rank, how many more it may examine, and what adds one.
local function batch()
  local ranks, left = {}, BATCH
  return ranks, function() return left end, function(id, rank)
    if not ranks[id] then left = left - 1 end
    ranks[id] = rank
  end
end

-- After `gone` left its resources (as holder or waiter): grants every waiter that became grantable,
-- and `also` if it is. More than one call's worth is left to `settle`.
local function hand_over(gone, also)
  local ranks, left, candidate = batch()
  if also then candidate(also.id, also.rank) end
  for _, resource in ipairs(gone.exclusive) do
    if left() > 0 then
      collect_after_exclusive(resource, '-inf', left(), candidate)
    else
      note_unsettled(resource, '-inf')
    end
  end
  for _, resource in ipairs(gone.shared) do collect_after_shared(resource, candidate) end
  return grant_candidates(ranks)
end

-- One more batch of what earlier calls left.
local function settle()
  local ranks, left, candidate = batch()
  for _, resource in ipairs(redis.call('HKEYS', UNSETTLED)) do
    if left() <= 0 then break end
    collect_after_exclusive(resource, redis.call('HGET', UNSETTLED, resource), left(), candidate)
  end
  return grant_candidates(ranks)
end

-- Takes a request out of everything: its record, locks or places in the queues, registry and slot.
-- Returns the resources whose mark may be of no use any more.
local function take_out(request)
  redis.call('DEL', REQUEST .. request.id, GRANT .. request.id)
  local marked = {}
  if request.state == 'waiting' then
    dequeue(request)
    each_resource(request, function(resource) marked[#marked + 1] = resource end)
  elseif request.state == 'due' then
    redis.pcall('ZREM', DUE, request.id)
  else
    marked = give_back(request)
    if request.state == 'granted' then redis.pcall('ZREM', READY .. request.lane, request.id) end
  end
  redis.pcall('SREM', OWNER .. request.owner, request.id)
  if request.slot then
    local number = request.slot:match('^%d+')
    if redis.pcall('HGET', SLOT .. request.owner, number) == request.id then
      redis.call('HDEL', SLOT .. request.owner, number)
    end
  end
  return marked
end

-- Ends a request, and hands what it leaves over to the waiters.
local function finish(request)
  local marked = take_out(request)
  if request.state == 'due' then return {} end -- nobody waits for what it never had
  local granted = hand_over(request)
  for _, resource in ipairs(marked) do drop_mark(resource) end
  -- All who wait for it see the sign; who comes later looks at the row.
  if request.watched and type(redis.pcall('RPUSH', ENDED .. request.id, '1')) == 'number' then
    redis.call('EXPIRE', ENDED .. request.id, 10)
  end
  return granted
end
