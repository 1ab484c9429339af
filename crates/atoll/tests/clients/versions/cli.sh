# `@e2b/cli`, the way a person uses it.
set -eu

id=$(e2b sandbox create base --detach)
e2b sandbox list | grep -q "$id"
echo "ok create"

said=$(e2b sandbox exec "$id" 'echo from the sandbox')
[ "$said" = "from the sandbox" ]
status=0
e2b sandbox exec "$id" 'exit 4' 2>/dev/null || status=$?
[ "$status" = 4 ]
said=$(echo piped | e2b sandbox exec "$id" cat)
[ "$said" = piped ]
echo "ok exec"

e2b sandbox info "$id" | grep -q "State: running"
e2b sandbox logs "$id" | grep -q "sandbox started"
e2b sandbox metrics "$id" >/dev/null
e2b template list | grep -q base
echo "ok info"

e2b sandbox kill "$id" | grep -q killed
if e2b sandbox info "$id" >/dev/null 2>&1; then exit 1; fi
echo "ok kill"
