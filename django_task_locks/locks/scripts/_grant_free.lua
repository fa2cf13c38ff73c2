-- The usual case of a request, in few commands: it is new, and nothing is in its way.

local number -- of its arrival, once it is drawn

local function score_of() return (100 - priority) * 8796093022208 + number end -- 2^43

-- The arguments of the HSET that writes the request; what is empty is left out.
local function fields_of(state, score, token)
  local time = redis.call('TIME')
  local fields = {
    REQUEST .. id, 'state', state, 'score', score, 'owner', owner,
    'since', time[1] * 1000 + math.floor(time[2] / 1000),
  }
  local function add(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if token ~= '' then add('token', token) end
  if not is_hold then
    add('queue', queue)
    add('lane', lane)
  end
  if slot ~= '' then add('slot', slot) end
  if label ~= '' then add('label', label) end
  if #exclusive > 0 then add('x', cjson.encode(exclusive)) end
  if #shared > 0 then add('s', cjson.encode(shared)) end
  return fields
end

-- The reply, or nil where it is not that simple: then nothing has changed but the counter. Each
-- write that a foreign value may hinder comes before those that are certain, and can be undone.
local function grant_free()
  if slot ~= '' or #ARGV > 1700 then return nil end
  -- an owner that stands there with this TTL is not closed; a lane that stands there is known
  if is_hold then
    if redis.pcall('HGET', OWNERS, owner) ~= ttl then return nil end
  elseif redis.pcall('HGET', LANES, lane) ~= description then
    return nil
  end

  local in_the_way, locks, shared_locks = { REQUEST .. id }, {}, {}
  for index, resource in ipairs(exclusive) do
    in_the_way[index + 1] = WAIT .. resource
    locks[2 * index - 1] = LOCK .. resource
    locks[2 * index] = id
  end
  for index, resource in ipairs(shared) do
    in_the_way[#in_the_way + 1] = WAIT_X .. resource
    shared_locks[index] = LOCK .. resource
  end
  if redis.call('EXISTS', unpack(in_the_way)) > 0 then return nil end
  -- an error is an exclusive holder, or something foreign
  if #shared > 0 and redis.pcall('SDIFF', REQUEST .. id, unpack(shared_locks)).err then return nil end

  number = redis.pcall('INCR', SEQ)
  if type(number) ~= 'number' then
    number = nil
    return nil
  end
  if #locks > 0 and redis.call('MSETNX', unpack(locks)) == 0 then return nil end
  local score = string.format('%.0f', score_of())
  local state, token = 'granted', ''
  local is_done = type(redis.pcall('SADD', OWNER .. owner, id)) == 'number'
  if is_hold then
    state, token = 'held', string.format('%.0f', number)
  elseif is_done then
    is_done = type(redis.pcall('ZADD', READY .. lane, score, id)) == 'number'
      and type(redis.pcall('ZADD', WAKE .. lane, 0, '1')) == 'number'
  end
  if not is_done then
    for _, resource in ipairs(exclusive) do redis.call('DEL', LOCK .. resource) end
    redis.pcall('SREM', OWNER .. owner, id)
    redis.pcall('ZREM', READY .. lane, id)
    return nil
  end
  for _, key in ipairs(shared_locks) do redis.call('SADD', key, id) end
  redis.call('HSET', unpack(fields_of(state, score, token)))
  return { state, token }
end
