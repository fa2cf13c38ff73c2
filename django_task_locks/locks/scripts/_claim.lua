-- Giving the next ready request to an executor slot.

--@include _due

-- returns {"claimed", id, token, is there more to settle}
--         | {"empty", ms until the next request is due or "", is there more to settle}
--         | {"lanes", version, lane, description, ...}
local function claim(owner, slot, ttl, lanes_version, lanes)
  local number = slot:match('^%d+')
  local slots = SLOT .. owner
  local held = redis.call('HGET', slots, number)
  if held then
    local request = read(held)
    -- not what a dead predecessor left in the slot: the supervisor ends that
    if request and request.owner == owner and request.slot == slot then
      return { 'claimed', held, request.token, 0 }
    end
    redis.call('HDEL', slots, number)
  end
  local version = redis.call('HGET', LANES, '') or '0'
  if version ~= lanes_version then
    -- the next idle executor hears of it too; the last to come finds nothing new and stops the chain
    light('')
    local values = { version }
    for _, value in ipairs(redis.call('HGETALL', LANES)) do values[#values + 1] = value end
    return reply('lanes', values)
  end
  if is_unsettled() == 1 then
    next_number()
    settle()
  end
  local next_due = promote_due()
  while true do
    local best, id, best_rank
    for _, lane in ipairs(lanes) do
      local candidate, rank = first_waiting(READY .. lane)
      if candidate and (not best or rank < best_rank) then
        best, id, best_rank = lane, candidate, rank
      end
    end
    if not best then return { 'empty', next_due, is_unsettled() } end
    local token = as_text(next_number())
    redis.call('ZREM', READY .. best, id)
    local request = read(id)
    if request and request.state == 'granted' then
      redis.pcall('SREM', OWNER .. request.owner, id)
      request.owner, request.slot, request.token = owner, slot, token
      set_state(request, 'held')
      redis.call('SADD', OWNER .. owner, id)
      redis.call('HSET', slots, number, id)
      redis.call('HSET', OWNERS, owner, ttl)
      -- whoever took the marker of one lane may have been given the request of another; and what
      -- is lit by the grant that is claimed here would wake another for nothing
      for _, lane in ipairs(lanes) do
        if redis.call('EXISTS', READY .. lane) == 1 then light(lane) else put_out(lane) end
      end
      -- it may have been the only one that knew when the next is due
      if next_due ~= '' then light('') end
      return { 'claimed', id, token, is_unsettled() }
    end
  end
end

local function foreign_for_claim(owner)
  local bad = foreign(OWNER .. owner, 'set') or foreign(SLOT .. owner, 'hash')
    or foreign(OWNERS, 'hash') or foreign(LANES, 'hash') or foreign_for_hand_over()
  if bad then return { 'foreign', bad } end
end
