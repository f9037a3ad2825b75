/// What the planner is told for the letters of a run, on the writer's connection and until the transaction ends.
///
/// Of a million letters a batch wants the next few. Unless it knows that, and how few they are (their number is written
/// out in the statement, not bound), the planner fetches all that match and sorts them, for every batch again.
extension DeadLetters {
    /// For letters in the order of their ids. Where the filter names the very ones, or the person, sorting those is right.
    static func planning(_ filter: DeadLetterFilter) -> String {
        let areFew = !filter.ids.isEmpty || filter.subject != nil
        return areFew
            ? planningBySubject
            : "\(planningBySubject); SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"
    }

    /// For the letters about some people. Neighbouring pages, which ``Notifications/writerSettings`` makes dear, cost
    /// what they do by default.
    static let planningBySubject =
        "SET LOCAL seq_page_cost = 1; SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"

    /// For the recording of them.
    static let planningAsBefore =
        "SET LOCAL seq_page_cost = 1e9; SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"
}
