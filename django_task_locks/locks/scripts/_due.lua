-- Requests whose time is still to come: they take no place in any queue until then.

--@include _admit

local MOST_PROMOTED = math.min(BATCH, 100) -- by one call
local LATER = 1000 -- ms after which one is looked at again that a foreign value keeps out

local function is_early(due)
  return due ~= '' and tonumber(due) > now_ms()
end

-- Its arrival is counted when its time comes: until then its score is that of its priority alone.
local function postpone(request, due)
  request.rank = request.rank - request.rank % ARRIVALS
  request.score = as_text(request.rank)
  set_state(request, 'due')
  redis.call('ZADD', DUE, due, request.id)
  -- one idle executor that knows the next time is enough, whatever its lanes
  if first_waiting(DUE) == request.id then light('') end
end

-- As a new request. Who cannot be let in for something foreign keeps nobody else out.
local function promote(id, now)
  local request = read(id)
  if not request or request.state ~= 'due' then
    redis.call('ZREM', DUE, id)
    return
  end
  local bad, obstacles, revocable = foreign(READY .. request.lane, 'zset'), nil, nil
  if not bad then
    request.rank = request.rank + next_number()
    request.score = as_text(request.rank)
    obstacles, revocable, bad = look_around(request)
  end
  if bad then
    redis.call('ZADD', DUE, as_text(now + LATER), id)
    return
  end
  redis.call('ZREM', DUE, id)
  admit(request, obstacles, revocable)
end

-- Lets in those whose time has come, up to a number. Returns the ms until the next one's, "" without
-- a next one. The caller has looked whether the counter is ours.
local function promote_due()
  local head, due = first_waiting(DUE)
  if not head then return '' end
  local now = now_ms()
  if due <= now then
    local ids = redis.call(
      'ZRANGEBYSCORE', DUE, '-inf', as_text(now), 'LIMIT', 0, MOST_PROMOTED)
    for _, id in ipairs(ids) do promote(id, now) end
    head, due = first_waiting(DUE)
    if not head then return '' end
  end
  return as_text(math.max(0, due - now))
end
