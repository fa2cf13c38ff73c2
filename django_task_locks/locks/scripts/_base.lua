-- Reading and checking, shared by all operations. Nothing here writes.

--@include _record

local CHUNK = 3500 -- unpack fails near 8,000 values
local GENERATION = 'generation:'

-- The next number: of an arrival, or as a token. The first write of a script that takes anything: a
-- server that refuses writes (out of memory, read-only, cannot save) refuses this one, before
-- anything is half done. One that only frees needs no memory, and begins with a DEL.
local function next_number()
  return redis.call('INCR', SEQ)
end

local function chunked(list, apply)
  for first = 1, #list, CHUNK do
    apply(unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

local function reply(word, values)
  table.insert(values, 1, word)
  return values
end

-- The type of a key is as expected, or the key is free. Otherwise its name is returned.
local function foreign(key, expected)
  local type = redis.call('TYPE', key).ok
  if type ~= 'none' and type ~= expected then return key end
end

-- A counter is a whole number, or the key is free. Otherwise its name is returned.
local function foreign_counter(key)
  local value = redis.pcall('GET', key)
  if not value then return nil end
  if type(value) == 'table' or #value > 16 or not value:match('^%d+$') then return key end
end

-- The request as a table; nil if unknown; nil and the key if a foreign value is in its place.
-- Of its score, which says its place in the order, `rank` is the number.
local function read(id)
  local record = redis.pcall('GET', REQUEST .. id)
  if not record then return nil end
  local is_json, request = pcall(cjson.decode, record)
  if not is_json or not is_record(request) then return nil, REQUEST .. id end
  request.id = id
  request.rank = tonumber(request.score)
  request.exclusive = request.exclusive or {}
  request.shared = request.shared or {}
  return request
end

-- A dead owner, or the predecessor of a slot, may change nothing.
local function refusal(owner, slot)
  if owner == '' then return nil end
  local closed = redis.pcall('ZSCORE', CLOSED, owner)
  if type(closed) == 'table' then return { 'foreign', CLOSED } end
  if closed then return { 'closed', owner } end
  if slot == '' then return nil end
  local number, generation = slot:match('^(%d+)%.(%d+)$')
  local present = redis.pcall('HGET', SLOT .. owner, GENERATION .. number)
  if type(present) == 'table' then return { 'foreign', SLOT .. owner } end
  if present and tonumber(present) > tonumber(generation) then return { 'stale_slot', slot } end
end

-- The id of the exclusive holder in a lock's value; nil in a mere mark that somebody waits. Text that
-- is not ours is taken for a holder that nobody knows.
local function holder_in(value)
  if value == AWAITED then return nil end
  local mark = value:sub(1, 1)
  return (mark == AWAITED or mark == UNAWAITED) and value:sub(2) or value
end

-- Whether owner and token, where given, are those of the request.
local function is_mine(request, owner, token)
  return (owner == '' or request.owner == owner) and (token == '' or request.token == token)
end

-- First id of a wait queue and its rank; nil where it is empty or no queue.
local function first_waiting(key)
  local head = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head.err or not head[1] then return nil end
  return head[1], tonumber(head[2])
end

-- The first key of a request's wait queues that holds something else: it cannot be queued then.
local function foreign_queue(request)
  for _, resource in ipairs(request.exclusive) do
    local bad = foreign(WAIT .. resource, 'zset') or foreign(WAIT_X .. resource, 'zset')
    if bad then return bad end
  end
  for _, resource in ipairs(request.shared) do
    local bad = foreign(WAIT .. resource, 'zset')
    if bad then return bad end
  end
end

-- What stands in the way of a request, as far as one look at each of its resources tells:
-- a list of {resource, mode, id}, at most `limit`, and the unclaimed grants that score later, which
-- may be sent back (looked for only with `may_revoke`: it reads every member of a shared lock, and
-- each once). One that a foreign value keeps from going back is an obstacle.
local function survey(request, may_revoke, limit)
  local obstacles, revocable, goes_back = {}, {}, {}
  local function obstacle(resource, mode, id)
    if #obstacles < limit then obstacles[#obstacles + 1] = { resource, mode, id } end
  end
  local function is_revocable(other)
    return other and other.state == 'granted' and other.rank > request.rank
      and not (foreign(READY .. other.lane, 'zset') or foreign_queue(other))
  end
  local function holder(resource, mode, id)
    if id == request.id then return end
    if may_revoke and goes_back[id] == nil then
      local other = read(id)
      goes_back[id] = is_revocable(other) or false
      if goes_back[id] then revocable[#revocable + 1] = other end
    end
    if not goes_back[id] then obstacle(resource, mode, id) end
  end
  -- Returns whether the lock can have no shared holders.
  local function exclusive_holder(resource)
    local value = redis.pcall('GET', LOCK .. resource)
    if type(value) ~= 'table' then
      local id = value and holder_in(value)
      if id then holder(resource, 'exclusive', id) end
      return true
    end
    local is_foreign = foreign(LOCK .. resource, 'set')
    if is_foreign then obstacle(resource, 'foreign', '') end
    return is_foreign
  end
  local function waiter(resource, mode, id, rank)
    if id and id ~= request.id and rank < request.rank then obstacle(resource, mode, id) end
  end
  for _, resource in ipairs(request.exclusive) do
    if not exclusive_holder(resource) then
      local members = may_revoke and redis.call('SMEMBERS', LOCK .. resource)
        or redis.call('SRANDMEMBER', LOCK .. resource, limit)
      for _, member in ipairs(members) do holder(resource, 'shared', member) end
    end
    local id, rank = first_waiting(WAIT_X .. resource)
    local first, first_rank = first_waiting(WAIT .. resource)
    waiter(resource, 'exclusive', id, rank)
    if first ~= id then waiter(resource, 'shared', first, first_rank) end
  end
  for _, resource in ipairs(request.shared) do
    exclusive_holder(resource)
    waiter(resource, 'exclusive', first_waiting(WAIT_X .. resource))
  end
  return obstacles, revocable
end

-- Adds to `values` each obstacle with state, owner, since and label of the request that it names.
local function append_obstacles(values, obstacles, most)
  for index = 1, math.min(#obstacles, most) do
    for _, value in ipairs(obstacles[index]) do values[#values + 1] = value end
    local other = obstacles[index][3] ~= '' and read(obstacles[index][3]) or {}
    for _, name in ipairs({ 'state', 'owner', 'since', 'label' }) do
      values[#values + 1] = other[name] or ''
    end
  end
end
