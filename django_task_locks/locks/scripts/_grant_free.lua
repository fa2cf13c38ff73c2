-- The usual case of a request, in few commands: it is new, and nothing is in its way. Where it is not
-- that simple it falls through, and nothing has changed but the counter: each write that a foreign
-- value may hinder comes before those that are certain, and can be undone. No function, not even one
-- of _record, which are written out here: to make them costs as much as three commands.

repeat
  if slot ~= '' or due ~= '' or #ARGV > 1700 then break end
  local known
  if is_hold then
    known = redis.pcall('HGET', OWNERS, owner) -- the TTL, negative once the owner is closed
  else
    known = redis.pcall('HGET', LANES, lane)
  end
  if known ~= ttl_or_lane then break end

  local exclusive = { unpack(ARGV, 11, 10 + exclusive_count) }
  local shared, are_sole, names = { unpack(ARGV, 11 + exclusive_count) }, true, nil
  if shared[1] then
    names = { unpack(ARGV, 1, 2 * #shared) }
    for index = 1, #shared do
      names[index] = LOCK .. shared[index]
      names[#shared + index] = WAIT .. shared[index] -- the lock may have been deleted by hand
    end
    are_sole = redis.call('EXISTS', unpack(names)) == 0
    if not are_sole then -- there may be others, and somebody who waits for their end
      for index = 1, #shared do names[index] = WAIT_X .. shared[index] end
      if redis.call('EXISTS', unpack(names, 1, #shared)) > 0 then break end
    end
  end

  number = redis.pcall('INCR', SEQ)
  if type(number) ~= 'number' or number < 1 then
    number = nil
    break
  end
  local state, token, time = 'granted', nil, redis.call('TIME')
  if is_hold then state, token = 'held', string.format('%.0f', number) end
  local score = string.format('%.0f', (100 - priority) * ARRIVALS + number)
  -- as long as it is to be from the start: one that grows is copied again and again
  local count = are_sole and exclusive_count + #shared or exclusive_count
  local keys, value = { unpack(ARGV, 1, 2 + 2 * count) }, UNAWAITED .. id
  keys[1] = REQUEST .. id
  keys[2] = cjson.encode({
    state = state, score = score, owner = owner, token = token, queue = queue,
    since = time[1] * 1000 + math.floor(time[2] / 1000),
    lane = not is_hold and lane or nil, label = label ~= '' and label or nil,
    exclusive = exclusive[1] and exclusive, shared = shared[1] and shared,
  })
  for index = 1, exclusive_count do
    keys[2 * index + 1] = LOCK .. exclusive[index]
    keys[2 * index + 2] = value
  end
  if are_sole then
    value = SOLE .. id
    for index = 1, #shared do
      keys[2 * (exclusive_count + index) + 1] = names[index]
      keys[2 * (exclusive_count + index) + 2] = value
    end
  end
  if redis.call('MSETNX', unpack(keys)) == 0 then break end -- it is known, or a lock is taken
  local is_done = type(redis.pcall('SADD', OWNER .. owner, id)) == 'number'
  if not are_sole then
    for index = 1, #shared do
      -- an error is a single holder, a mark that somebody waits, or something foreign
      is_done = is_done and type(redis.pcall('SADD', LOCK .. shared[index], id)) == 'number'
    end
  end
  if is_done and not is_hold then
    is_done = type(redis.pcall('ZADD', READY .. lane, score, id)) == 'number'
      and type(redis.pcall('ZADD', WAKE .. lane, 0, '1')) == 'number'
  end
  if is_done then return { state, token or '' } end
  for _, resource in ipairs(shared) do redis.pcall('SREM', LOCK .. resource, id) end
  for index = 1, #keys, 2 do redis.call('DEL', keys[index]) end
  redis.pcall('SREM', OWNER .. owner, id)
  redis.pcall('ZREM', READY .. lane, id)
until true
