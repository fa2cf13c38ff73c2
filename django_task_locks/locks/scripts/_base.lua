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

-- The id of a lock's only shared holder; nil where its value is anything else.
local function sole_in(value)
  return type(value) == 'string' and #value > 1 and value:sub(1, 1) == SOLE and value:sub(2) or nil
end

-- Who holds a resource: "exclusive" or "shared" and a list of ids, of a set of them `most` (all without
-- it); "" and none where nobody does; "foreign" and none. Text that is not ours is taken for a holder
-- that nobody knows.
local function holders_of(resource, most)
  local value = redis.pcall('GET', LOCK .. resource)
  if not value or value == AWAITED then return '', {} end
  if type(value) == 'string' then
    if sole_in(value) then return 'shared', { sole_in(value) } end
    local mark = value:sub(1, 1)
    return 'exclusive', { (mark == AWAITED or mark == UNAWAITED) and value:sub(2) or value }
  end
  if foreign(LOCK .. resource, 'set') then return 'foreign', {} end
  if most then return 'shared', redis.call('SRANDMEMBER', LOCK .. resource, most) end
  return 'shared', redis.call('SMEMBERS', LOCK .. resource)
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
  local function holders(resource, harmless)
    local most = harmless == 'shared' and 0 or not may_revoke and limit or nil
    local mode, ids = holders_of(resource, most)
    if mode == 'foreign' then obstacle(resource, mode, '') end
    if mode == harmless then return end
    for _, id in ipairs(ids) do holder(resource, mode, id) end
  end
  local function waiter(resource, mode, id, rank)
    if id and id ~= request.id and rank < request.rank then obstacle(resource, mode, id) end
  end
  for _, resource in ipairs(request.exclusive) do
    holders(resource)
    local id, rank = first_waiting(WAIT_X .. resource)
    local first, first_rank = first_waiting(WAIT .. resource)
    waiter(resource, 'exclusive', id, rank)
    if first ~= id then waiter(resource, 'shared', first, first_rank) end
  end
  for _, resource in ipairs(request.shared) do
    holders(resource, 'shared')
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
