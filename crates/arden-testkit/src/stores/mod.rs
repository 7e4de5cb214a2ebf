//! What every `FileStore` has to do, told once and run over each store. `all_cases!(name: make)` makes a module `name` of
//! tests; `make` is a path to a function that gives something to keep and an empty store.

pub mod cases;
mod ranges;
mod streams;

#[doc(hidden)]
#[macro_export]
macro_rules! suite {
    ($store:ident: $make:expr; $($case:ident)*) => {
        mod $store {
            $(#[test]
            fn $case() {
                let (_keep, store) = $make();
                $crate::stores::cases::$case(&*store);
            })*
        }
    };
}

#[macro_export]
macro_rules! all_cases {
    ($store:ident: $make:expr) => {
        $crate::suite! { $store: $make;
            a_new_store_is_an_empty_directory
            created_is_found_in_any_case
            short_names_lead_to_their_files
            a_missing_name_has_its_parent
            a_missing_directory_is_a_path_not_found
            names_collide_in_any_case
            names_of_all_planes_come_back
            data_reads_back
            sizes_grow_and_shrink
            what_nobody_wrote_reads_as_zeros
            attributes_and_times_stay
            descriptors_stay_and_are_inherited
            a_listing_has_each_entry_once
            a_listing_peeks_and_rewinds
            rename_moves_and_is_seen_by_others
            rename_changes_case
            rename_replaces_only_when_told
            a_file_takes_its_own_short_name
            a_directory_moves_with_its_content
            unlinked_data_lives_on
            a_full_directory_stays
            streams_have_their_own_data
            large_streams_work
            streams_rename_and_vanish
            streams_and_the_data_change_places
            writes_beside_stream_renames_are_kept
            eas_match_in_any_case
            eas_have_a_limit
            reparse_points_are_kept
            hard_links_share_data
            a_name_moves_onto_another_of_the_same_file
            a_new_name_takes_the_place_of_an_8_3_name
            a_name_replaces_the_file_that_was_looked_at
            sparse_ranges_are_told
            many_sparse_ranges_are_told
            copies_inside_the_store
            copies_of_overlapping_ranges_are_as_if_read_first
            clones_share_or_do_nothing
            object_ids_are_kept
            type_and_stream_suffixes_decide
            wrong_kinds_are_refused
            a_file_in_use_is_found_by_id
            many_threads_make_each_name_once
        }
    };
}
