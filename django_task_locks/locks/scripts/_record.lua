-- The record of a request, and what is in it.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function as_text(number)
  return string.format('%.0f', number)
end

-- Its place in the order: a smaller one goes first.
local function rank_of(priority, number)
  return (100 - priority) * ARRIVALS + number
end

--@include _is_record

-- A JSON object, without what is empty (Lua writes no entries as {}).
local function record_of(request)
  return cjson.encode({
    state = request.state, score = request.score, owner = request.owner, since = request.since,
    token = request.token, queue = request.queue, lane = request.lane, slot = request.slot,
    label = request.label, watched = request.watched,
    exclusive = request.exclusive[1] and request.exclusive,
    shared = request.shared[1] and request.shared,
  })
end
