-- The usual case of a request, in few commands: it is new, and nothing is in its way.

-- The reply, or nil where it is not that simple: then nothing has changed but the counter. Each
-- write that a foreign value may hinder comes before those that are certain, and can be undone.
local function grant_free()
  if request.slot or #ARGV > 1700 then return nil end
  -- an owner that stands there with this TTL is not closed; a lane that stands there is known
  if redis.pcall('HGET', is_hold and OWNERS or LANES, is_hold and owner or lane) ~= kept then
    return nil
  end

  local keys, value = { REQUEST .. id, '' }, UNAWAITED .. id
  for index, resource in ipairs(exclusive) do
    keys[2 * index + 1] = LOCK .. resource
    keys[2 * index + 2] = value
  end
  local waits, shared_locks = {}, {}
  if shared[1] then
    for index, resource in ipairs(shared) do
      waits[index] = WAIT_X .. resource
      shared_locks[index] = LOCK .. resource
    end
    if redis.call('EXISTS', unpack(waits)) > 0 then return nil end
    -- an error is an exclusive holder, a mark that somebody waits, or something foreign
    if redis.pcall('SDIFF', keys[1], unpack(shared_locks)).err then return nil end
  end

  local number = redis.pcall('INCR', SEQ)
  if type(number) ~= 'number' then return nil end
  arrive(number)
  request.since = since_now()
  request.state = 'granted'
  if is_hold then
    request.state = 'held'
    request.token = string.format('%.0f', number)
  end
  keys[2] = record_of(request)
  if redis.call('MSETNX', unpack(keys)) == 0 then return nil end -- it is known, or a lock is taken
  local is_done = type(redis.pcall('SADD', OWNER .. owner, id)) == 'number'
  if is_done and not is_hold then
    is_done = type(redis.pcall('ZADD', READY .. lane, request.score, id)) == 'number'
      and type(redis.pcall('ZADD', WAKE .. lane, 0, '1')) == 'number'
  end
  if not is_done then
    for index = 1, #keys, 2 do redis.call('DEL', keys[index]) end
    redis.pcall('SREM', OWNER .. owner, id)
    redis.pcall('ZREM', READY .. lane, id)
    return nil
  end
  for _, key in ipairs(shared_locks) do redis.call('SADD', key, id) end
  return { request.state, request.token or '' }
end
