// A coding agent in the style of CodeCrucible, whose dangerous tools run in
// Atoll instead of on the host.
//
// The agent's loop is the usual one: ask the model, call the tool it names, give
// the result back, until the model answers. Nothing here starts a process on this
// machine but `atoll mcp`, and nothing that the model writes runs outside a sandbox.
//
//   npm ci && node agent.ts            (Node 24 runs TypeScript as it is)
//   ATOLL_MCP='sudo -n atoll mcp'      how to start Atoll
//
// The model is a script, so that the example needs no network and no key. Put the
// call of your own model's API into `Model.next`; `toolsFor` has the schemas.

import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'

type Arguments = Record<string, unknown>
type Turn = { tool: string; arguments: Arguments } | { answer: string }
type Message = { role: 'user' | 'tool'; content: string; failed?: boolean }

interface Model {
  next(messages: Message[], tools: { name: string }[]): Promise<Turn>
}

/** The tools that CodeCrucible calls unsafe, each with what replaces it. */
class SandboxTools {
  private readonly client = new Client({ name: 'codecrucible-example', version: '1.0.0' })
  readonly sessionId: string

  constructor(sessionId: string) {
    this.sessionId = sessionId
  }

  async open(command: string): Promise<void> {
    const [program, ...args] = command.split(' ')
    await this.client.connect(new StdioClientTransport({ command: program, args, env: process.env as Record<string, string> }))
  }

  async toolsFor(): Promise<{ name: string; description?: string; inputSchema: unknown }[]> {
    return (await this.client.listTools()).tools
  }

  async call(tool: string, args: Arguments): Promise<Message> {
    const own = ['executeCode', 'terminal', 'fileOperations'].includes(tool)
    const result = await this.client.callTool({ name: tool, arguments: own ? { sessionId: this.sessionId, ...args } : args })
    const content = result.content as { type: string; text?: string }[]
    const text = content.map((block) => block.text ?? `[${block.type}]`).join('\n')
    return { role: 'tool', content: text, failed: result.isError === true }
  }

  async close(): Promise<void> {
    await this.client.close()
  }
}

async function react(model: Model, tools: SandboxTools, task: string, steps = 10): Promise<string> {
  const messages: Message[] = [{ role: 'user', content: task }]
  const schemas = await tools.toolsFor()
  for (let step = 0; step < steps; step++) {
    const turn = await model.next(messages, schemas)
    if ('answer' in turn) return turn.answer
    const message = await tools.call(turn.tool, turn.arguments)
    console.error(`${turn.tool}: ${message.content.split('\n')[0]}`)
    messages.push(message)
  }
  throw new Error(`no answer after ${steps} steps`)
}

/** What a model would do: write a program with a mistake, see it fail, mend it, test it. */
class ScriptedModel implements Model {
  async next(messages: Message[], tools: { name: string }[]): Promise<Turn> {
    const last = messages[messages.length - 1]
    switch (messages.length) {
      case 1:
        if (!tools.some((tool) => tool.name === 'executeCode')) throw new Error('executeCode is not listed')
        return { tool: 'fileOperations', arguments: { operation: 'upload', path: '/home/user/primes.py', content: BROKEN } }
      case 2:
        return { tool: 'terminal', arguments: { command: 'python3 primes.py', timeout: 10000 } }
      case 3:
        if (!last.content.includes('NameError')) throw new Error(`expected a NameError: ${last.content}`)
        return { tool: 'fileOperations', arguments: { operation: 'upload', path: '/home/user/primes.py', content: MENDED } }
      case 4:
        return { tool: 'executeCode', arguments: { language: 'python', code: 'import primes\nprint(sum(primes.below(100)))', timeout: 30000 } }
      case 5:
        // What would have deleted the user's files deletes those of a sandbox.
        return { tool: 'terminal', arguments: { command: 'rm -rf /home/user/*; hostname; ls /home/user | wc -l' } }
      default:
        return { answer: `the primes below 100 add up to ${messages[4].content.trim()}` }
    }
  }
}

const BROKEN = 'def below(n):\n    return [p for p in range(2, n) if all(p % d for d in range(2, p))]\nprint(belw(10))\n'
const MENDED = BROKEN.replace('print(belw(10))\n', '')

const tools = new SandboxTools('agent-1')
await tools.open(process.env.ATOLL_MCP ?? 'sudo -n atoll mcp --aliases')
try {
  console.log(await react(new ScriptedModel(), tools, 'Add up all primes below 100.'))
} finally {
  await tools.close()
}
