-- Taking, giving back and handing over locks.

--@include _wake

local function each_wait_key(request, apply)
  for _, resource in ipairs(request.exclusive) do apply(WAIT_X .. resource) end
  for _, resource in ipairs(request.shared) do apply(WAIT_S .. resource) end
end

local function set_state(request, state, ...)
  request.state = state
  redis.call('HSET', REQUEST .. request.id, 'state', state, 'since', now_ms(), ...)
end

local function take(request)
  local pairs_to_set = {}
  for _, resource in ipairs(request.exclusive) do
    pairs_to_set[#pairs_to_set + 1] = LOCK .. resource
    pairs_to_set[#pairs_to_set + 1] = request.id
  end
  chunked(pairs_to_set, function(...) redis.call('MSET', ...) end)
  for _, resource in ipairs(request.shared) do redis.call('SADD', LOCK .. resource, request.id) end
end

-- Frees only what is this request's: a foreign value, or a lock that an operator deleted and
-- somebody else took, is left alone.
local function give_back(request)
  local keys, mine = {}, {}
  for _, resource in ipairs(request.exclusive) do keys[#keys + 1] = LOCK .. resource end
  for first = 1, #keys, CHUNK do
    local last = math.min(first + CHUNK - 1, #keys)
    for index, holder in ipairs(redis.call('MGET', unpack(keys, first, last))) do
      if holder == request.id then mine[#mine + 1] = keys[first + index - 1] end
    end
  end
  chunked(mine, function(...) redis.call('DEL', ...) end)
  for _, resource in ipairs(request.shared) do redis.pcall('SREM', LOCK .. resource, request.id) end
end

local function enqueue(request)
  each_wait_key(request, function(key) redis.pcall('ZADD', key, request.score_text, request.id) end)
end

local function dequeue(request)
  each_wait_key(request, function(key) redis.pcall('ZREM', key, request.id) end)
end

-- All locks are free for this request: give them. A request that names its holder (a hold, an
-- immediate task) is held from here on; a task is granted until a worker claims it.
local function grant(request)
  take(request)
  if request.claims == '1' then
    request.token = string.format('%.0f', redis.call('INCR', TOKEN))
    set_state(request, 'held', 'token', request.token)
  else
    set_state(request, 'granted')
    redis.call('ZADD', READY .. request.lane, request.score_text, request.id)
    light(request.lane)
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

-- A waiting request conflicts with no holder and with no earlier waiter. Every holder counts:
-- a later unclaimed grant in its way was sent back when the waiter arrived. What grant() writes
-- besides the locks must be ours: it may not fail half-way.
local function is_grantable(request)
  local bad
  if request.claims == '1' then
    bad = foreign_counter(TOKEN)
  else
    bad = foreign(READY .. request.lane, 'zset')
  end
  if bad then return false end
  for _, resource in ipairs(request.exclusive) do
    if redis.call('EXISTS', LOCK .. resource) == 1 then return false end
    if first_waiting(WAIT_X .. resource) ~= request.id then return false end
    local _, score = first_waiting(WAIT_S .. resource)
    if score and score < request.score then return false end
  end
  for _, resource in ipairs(request.shared) do
    if foreign(LOCK .. resource, 'set') then return false end
    local _, score = first_waiting(WAIT_X .. resource)
    if score and score < request.score then return false end
  end
  return true
end

-- After `gone` left its resources (as holder or waiter): grants every waiter that became grantable,
-- in order, and returns their ids. Candidates are, for each resource, the first exclusive waiter or
-- the run of shared waiters before it; where a shared request left, that run was grantable before.
-- Granting one candidate never makes another grantable, so one pass is enough.
local function hand_over(gone, also)
  local scores = {}
  local function candidate(id, score) if id then scores[id] = score end end
  local function first_exclusive(resource) return first_waiting(WAIT_X .. resource) end
  for _, resource in ipairs(gone.exclusive) do
    local id, score = first_exclusive(resource)
    local bound = score and '(' .. string.format('%.0f', score) or '+inf'
    local run = redis.pcall('ZRANGEBYSCORE', WAIT_S .. resource, '-inf', bound, 'WITHSCORES')
    if run.err or #run == 0 then
      candidate(id, score)
    else
      for index = 1, #run, 2 do candidate(run[index], tonumber(run[index + 1])) end
    end
  end
  for _, resource in ipairs(gone.shared) do
    local id, score = first_exclusive(resource)
    local _, shared_score = first_waiting(WAIT_S .. resource)
    if not (shared_score and score and shared_score < score) then candidate(id, score) end
  end
  if also then candidate(also.id, also.score) end
  local order = {}
  for id in pairs(scores) do order[#order + 1] = id end
  table.sort(order, function(a, b) return scores[a] < scores[b] end)
  local granted = {}
  for _, id in ipairs(order) do
    local request = read(id)
    if request and request.state == 'waiting' and is_grantable(request) then
      dequeue(request)
      grant(request)
      if request.claims == '1' then
        if type(redis.pcall('RPUSH', GRANT .. id, request.token)) == 'number' then
          redis.call('PEXPIRE', GRANT .. id, 60000)
        end
      end
      granted[#granted + 1] = id
    end
  end
  return granted
end

-- Ends a request: frees its locks or its places in the queues, and hands over to the waiters.
local function finish(request)
  if request.state == 'waiting' then
    dequeue(request)
  else
    give_back(request)
    if request.state == 'granted' then redis.pcall('ZREM', READY .. request.lane, request.id) end
  end
  redis.pcall('SREM', OWNER .. request.owner, request.id)
  if request.slot ~= '' then
    local number = request.slot:match('^%d+')
    if redis.pcall('HGET', SLOT .. request.owner, number) == request.id then
      redis.call('HDEL', SLOT .. request.owner, number)
    end
  end
  redis.call('DEL', REQUEST .. request.id, GRANT .. request.id)
  return hand_over(request)
end
