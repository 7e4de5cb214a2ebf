//! QUERY_INFO and SET_INFO for the file system, and quotas, [MS-FSA] 2.1.5.13, 2.1.5.16, 2.1.5.21 and 2.1.5.22.

use crate::client::*;

/// FileSystemAttributes, [MS-FSCC] 2.5.1.
const FILE_COMPRESSION: u32 = 0x10;
const VOLUME_QUOTAS: u32 = 0x20;
const SPARSE_FILES: u32 = 0x40;
const OBJECT_IDS: u32 = 0x1_0000;
const ENCRYPTION: u32 = 0x2_0000;
const NAMED_STREAMS: u32 = 0x4_0000;
const INTEGRITY_STREAMS: u32 = 0x400_0000;

fn both(check: impl Fn(&mut Client, FileId)) {
    let lab = Lab::new();
    let mut c = lab.client();
    for w in [want("file"), want("dir").directory()] {
        let f = c.open(w);
        check(&mut c, f.id);
    }
}

/// `FsInfo_Query_FileFsAttributeInformation_File_IsCompressionSupported`,
/// `FsInfo_Query_FileFsAttributeInformation_Dir_IsCompressionSupported`,
/// `FsInfo_Query_FileFsAttributeInformation_File_IsEncryptionSupported`,
/// `FsInfo_Query_FileFsAttributeInformation_Dir_IsEncryptionSupported`,
/// `FsInfo_Query_FileFsAttributeInformation_File_IsIntegritySupported`,
/// `FsInfo_Query_FileFsAttributeInformation_Dir_IsIntegritySupported`,
/// `FsInfo_Query_FileFsAttributeInformation_File_IsObjectIDsSupported`,
/// `FsInfo_Query_FileFsAttributeInformation_Dir_IsObjectIDsSupported`
#[test]
fn fs_info_query_file_fs_attribute_information() {
    both(|c, id| {
        let data = c.try_query_fs(id, fs_class::ATTRIBUTE, 4096).unwrap();
        let attributes = le_u32(&data, 0);
        assert_eq!(attributes & (FILE_COMPRESSION | ENCRYPTION | INTEGRITY_STREAMS | VOLUME_QUOTAS), 0);
        let has = OBJECT_IDS | NAMED_STREAMS | SPARSE_FILES;
        assert_eq!(attributes & has, has);
        assert_eq!(le_u32(&data, 4), 255);
    });
}

/// `FsInfo_Query_FileFsObjectIdInformation_File_IsObjectIdSupported`,
/// `FsInfo_Query_FileFsObjectIdInformation_Dir_IsObjectIdSupported`,
/// `FsInfo_Query_FileFsObjectIdInformation_File_OutputBufferSize_TooSmall`,
/// `FsInfo_Query_FileFsObjectIdInformation_Dir_OutputBufferSize_TooSmall`
#[test]
fn fs_info_query_file_fs_object_id_information() {
    both(|c, id| {
        let data = c.try_query_fs(id, fs_class::OBJECT_ID, 64).unwrap();
        assert_ne!(data[..16], [0; 16]);
        assert_eq!(c.try_query_fs(id, fs_class::OBJECT_ID, 63).unwrap_err(), NtStatus::INFO_LENGTH_MISMATCH);
    });
}

/// `FsInfo_Query_FileFsSectorSizeInformation_File_OutputBufferSizeLessThanSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_Dir_OutputBufferSizeLessThanSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_File_OutputBufferSizeEqualToSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_Dir_OutputBufferSizeEqualToSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_File_OutputBufferSizeGreaterThanSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_Dir_OutputBufferSizeGreaterThanSectorSizeInfo`,
/// `FsInfo_Query_FileFsSectorSizeInformation_File_OutputValue_Common`,
/// `FsInfo_Query_FileFsSectorSizeInformation_Dir_OutputValue_Common`
#[test]
fn fs_info_query_file_fs_sector_size_information() {
    both(|c, id| {
        let class = fs_class::SECTOR_SIZE;
        assert_eq!(c.try_query_fs(id, class, 27).unwrap_err(), NtStatus::INFO_LENGTH_MISMATCH);
        assert_eq!(c.try_query_fs(id, class, 28).unwrap().len(), 28);
        let data = c.try_query_fs(id, class, 4096).unwrap();
        assert_eq!(data.len(), 28);
        let logical = le_u32(&data, 0);
        for at in [0, 4, 8, 12] {
            let size = le_u32(&data, at);
            assert!(size.is_power_of_two() && (512..=4096).contains(&size) && size >= logical);
        }
        assert_eq!(le_u32(&data, 4), le_u32(&data, 8));
    });
}

/// `FsInfo_Query_FileFsSizeInformation_File_SectorsPerAllocationUnit`,
/// `FsInfo_Query_FileFsSizeInformation_Dir_SectorsPerAllocationUnit`
#[test]
fn fs_info_query_file_fs_size_information() {
    both(|c, id| {
        let size = c.try_query_fs(id, fs_class::SIZE, 24).unwrap();
        let full = c.try_query_fs(id, fs_class::FULL_SIZE, 32).unwrap();
        assert_eq!(size[16..24], full[24..32]);
        assert!(le_u64(&size, 8) <= le_u64(&size, 0), "free fits in the whole");
        let cluster = le_u32(&size, 16) * le_u32(&size, 20);
        assert!(cluster.is_power_of_two() && cluster >= 512);
        assert_eq!(c.try_query_fs(id, fs_class::SIZE, 23).unwrap_err(), NtStatus::INFO_LENGTH_MISMATCH);
    });
}

/// `FsInfo_Set_FileFsSectorSizeInformation_File_InvalidInfoClass`,
/// `FsInfo_Set_FileFsSectorSizeInformation_Dir_InvalidInfoClass`
#[test]
fn fs_info_set_file_fs_sector_size_information_invalid_info_class() {
    both(|c, id| {
        let req = set_info(id, info_type::FILE_SYSTEM, fs_class::SECTOR_SIZE, 0, &[0; 28]);
        assert_eq!(c.status(&req), NtStatus::INVALID_INFO_CLASS);
    });
}

#[test]
fn the_other_classes() {
    both(|c, id| {
        let device = c.try_query_fs(id, fs_class::DEVICE, 8).unwrap();
        assert_eq!(le_u32(&device, 0), 7);
        let volume = c.try_query_fs(id, fs_class::VOLUME, 4096).unwrap();
        assert!(le_u64(&volume, 0) > 0);
        assert_eq!(c.try_query_fs(id, 99, 4096).unwrap_err(), NtStatus::INVALID_INFO_CLASS);
    });
}

/// `QuotaInfo_Query_QuotaInformation_IsQuotaInfoSupported`, `QuotaInfo_Set_QuotaInformation_IsQuotaInfoSupported`,
/// `BVT_SMB2Basic_Query_Quota_Info`
#[test]
fn quota_info_is_not_supported() {
    both(|c, id| {
        let mut query = vec![0, 1, 0, 0];
        query.put_zeros(12);
        let req = query_info(id, info_type::QUOTA, 0, 0, &query, 2048);
        assert_eq!(c.status(&req), NtStatus::NOT_SUPPORTED);
        assert_eq!(c.status(&set_info(id, info_type::QUOTA, 0, 0, &[0; 56])), NtStatus::NOT_SUPPORTED);
    });
}

/// [MS-FSA] 2.1.5.13.6 and 2.1.5.16.6: IsQuotasSupported is FALSE for a directory. The length comes first.
#[test]
fn fs_control_of_a_volume_without_quotas_is_not_upgraded() {
    both(|c, id| {
        assert_eq!(c.try_query_fs(id, fs_class::CONTROL, 40).unwrap_err(), NtStatus::INFO_LENGTH_MISMATCH);
        assert_eq!(c.try_query_fs(id, fs_class::CONTROL, 48).unwrap_err(), NtStatus::VOLUME_NOT_UPGRADED);
        let short = set_info(id, info_type::FILE_SYSTEM, fs_class::CONTROL, 0, &[0; 40]);
        assert_eq!(c.status(&short), NtStatus::INFO_LENGTH_MISMATCH);
        let whole = set_info(id, info_type::FILE_SYSTEM, fs_class::CONTROL, 0, &[0; 48]);
        assert_eq!(c.status(&whole), NtStatus::VOLUME_NOT_UPGRADED);
    });
}
