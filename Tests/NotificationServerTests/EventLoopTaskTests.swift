import Listening
import NIOCore
import Testing

@Suite("Tasks on event loops")
struct EventLoopTaskTests {
    @Test("A task runs on an event loop if it is started there, also after it has waited for another thread.")
    func runsOnTheLoop() async throws {
        let loops = EventLoops.start(count: 1)
        let loop = loops.group.next()
        let task = Task(executorPreference: loops.executor()) {
            let before = loop.inEventLoop
            await Task(executorPreference: globalConcurrentExecutor) {}.value
            return (before, loop.inEventLoop)
        }
        #expect(await task.value == (true, true))
        #expect(await Task { loop.inEventLoop }.value == false)
        try await loops.group.shutdownGracefully()
    }
}
