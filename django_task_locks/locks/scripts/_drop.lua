-- Ending a request without handing over: what it leaves is noted for `settle`.

local function drop(request)
  take_out(request)
  each_resource(request, function(resource)
    drop_mark(resource)
    if is_awaited(resource) then note_unsettled(resource, '-inf') end
  end)
end
