//! What a volume does, a module for each kind of feature. One program, as each further one takes seconds to link. Tests that look at
//! memory or processor time of their process have programs of their own beside this one.

mod formatting;
mod fuzz;
mod ids;
mod images;
mod journal;
mod nodes;
mod quotas;
mod roots;
mod sizes;
mod thin;
