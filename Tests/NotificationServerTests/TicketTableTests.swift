import Testing

@testable import NotificationServer

@Suite("The table of tickets")
struct TicketTableTests {
    @Test("A ticket finds its request once.")
    func once() {
        var table = TicketTable<String>()
        let first = table.issue(to: "a", sequence: 1)
        let second = table.issue(to: "b", sequence: 2)
        #expect(table.count == 2)
        let found = table.redeem(second)
        #expect(found?.holder == "b")
        #expect(found?.sequence == 2)
        let again = table.redeem(second)
        #expect(again == nil)
        let other = table.redeem(first)
        #expect(other?.holder == "a")
        #expect(table.count == 0)
    }

    @Test("A redeemed ticket does not find a later request.")
    func reuse() {
        var table = TicketTable<String>()
        let old = table.issue(to: "old", sequence: 1)
        table.redeem(old)
        let current = table.issue(to: "current", sequence: 7)
        #expect(old != current)
        let late = table.redeem(old)
        #expect(late == nil)
        let found = table.redeem(current)
        #expect(found?.sequence == 7)
    }

    @Test("A number that was never issued finds nothing.", arguments: [0, 1, UInt64.max, 1 << 32])
    func unknown(_ ticket: UInt64) {
        var table = TicketTable<String>()
        let found = table.redeem(ticket)
        #expect(found == nil)
    }
}
